"""Reading a .pt / .pth file without running anything in it: the one place where a pickle is read.

torch's restricted unpickler makes tensors and plain containers only. Two more names occur in the released files
and are let through as harmless stand-ins: the `argparse.Namespace` of a training run and the `EasyDict` that
holds the arguments of Tar's files, which comes out as a plain ordered mapping, so that the
`easydict` package is not needed.
"""

import errno
import pickle
import re
import zipfile
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
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
        with _only_stand_ins():
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path) or None)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file; give a checkpoint file or folder.") from error
    except pickle.UnpicklingError as error:
        if "Unsupported operand" in str(error) or _ends_in_a_name(path, error):  # the first bytes of a zip, or a cut
            raise _broken(path, error) from error
        raise DataError(
            f"{path}: refused, nothing in it was run: {_reason(error)}; allowed are tensors, containers, "
            "argparse.Namespace and EasyDict, so get the file from its original source."
        ) from error
    except MemoryError:
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:  # mapping a zip that was cut off
            raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the file.") from error
        raise _broken(path, error) from error
    except Exception as error:  # a broken file breaks the reader in many ways; none of them is ours
        raise _broken(path, error) from error


@contextmanager
def _only_stand_ins() -> Iterator[None]:
    """Allow the stand-ins and nothing else: other libraries of the process may have allowed numpy's parts, of which an
    array of made-up object pointers can be put together."""
    before = torch.serialization.get_safe_globals()
    torch.serialization.clear_safe_globals()
    torch.serialization.add_safe_globals(STAND_INS)
    try:
        yield
    finally:
        torch.serialization.clear_safe_globals()
        torch.serialization.add_safe_globals(before)


def _broken(path: Path, error: Exception) -> DataError:
    size = path.stat().st_size
    return DataError(
        f"{path}: not a whole torch file ({size:,} bytes, {type(error).__name__}); the download may have been cut off, "
        "so get it again."
    )


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
    if name := _name(error):
        return f"it names {name}, which could run code"
    return str(error).partition("WeightsUnpickler error: ")[2].strip().partition("\n")[0] or "it is not a torch file"


def _name(error: pickle.UnpicklingError) -> str:
    """The name that the file asked for and may not have, "" for another error."""
    named = re.search(r"GLOBAL (\S+)", str(error))
    return named[1] if named else ""


def _ends_in_a_name(path: Path, error: pickle.UnpicklingError) -> bool:
    """Whether the refused name is the last thing in the file, without the end of line that follows one."""
    name = _name(error)
    return bool(name) and path.read_bytes().endswith(name.rpartition(".")[2].encode())
