"""The files of the paper's Table 1, in two groups; the contract test holds that every shipped one is in one of them."""

# File -> the target of `tests/pipeline/test_table1.py` that it is run on.
RUNNABLE = {
    "table1-llamagen-xl-512": "toygen-16",
    "table1-tar-1.5b-512": "toytar-16",
    "table1-tar-7b-512": "toytar-16",
    "table1-tar-1.5b-1024": "toytar-32",
    "table1-tar-7b-1024": "toytar-32",
}
# File -> what it waits for, all of which planning must name.
WAITING = {
    "table1-geneval": ("geneval-mask2former",),
    "table1-dpg": ("dpg-mplug",),
    "table1-coco": ("fid", "hpsv2"),
    "table1-eagle2": ("eagle2",),
    "table1-lantern": ("lantern",),
}
