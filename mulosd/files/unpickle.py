"""Reading a .pt / .pth file without running anything in it.

torch's restricted unpickler makes tensors and plain containers only. Two more names occur in the released files
and are let through as harmless stand-ins: the `argparse.Namespace` of a training run and the `EasyDict` that
holds the arguments of Tar's files, which comes out as a plain ordered mapping, so that the
`easydict` package is not needed.
"""

import pickle
import re
import zipfile
from argparse import Namespace
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch

from mulosd.errors import DataError

# (stand-in, name in the file); the restricted unpickler fills OrderedDict, but no other subclass of dict.
STAND_INS: list[Any] = [(Namespace, "argparse.Namespace"), (OrderedDict, "easydict.EasyDict")]


def unpickle(path: Path) -> Any:
    """The object that `torch.save` wrote, tensors on the CPU and mapped from the file where its format allows.

    DataError for a file that names anything else than tensors, containers and the stand-ins (nothing of it is run),
    and for one that torch cannot read.
    """
    try:
        with torch.serialization.safe_globals(STAND_INS):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path) or None)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; give a checkpoint file or folder.") from error
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path}: refused, nothing in it was run: {_reason(error)}; allowed are tensors, containers, "
            "argparse.Namespace and EasyDict, so get the file from its original source."
        ) from error
    except (MemoryError, OSError):
        raise
    except Exception as error:  # a broken file breaks the reader in many ways; none of them is ours
        raise DataError(f"{path}: not a whole torch file ({type(error).__name__}); get it again.") from error


def plain(value: Any) -> Any:
    """Arguments of a file as JSON values: namespaces and mappings become dicts, what JSON lacks becomes its text."""
    if isinstance(value, Namespace):
        value = vars(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _reason(error: pickle.UnpicklingError) -> str:
    named = re.search(r"GLOBAL (\S+)", str(error))
    if named:
        return f"it names {named[1]}, which could run code"
    return str(error).partition("WeightsUnpickler error: ")[2].strip().partition("\n")[0] or "it is no torch file"
