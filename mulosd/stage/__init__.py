"""The stage: decoded images as Parquet chunks, one manifest per cell that is written last.

schema · write · read · verify · export. The only package of the core that uses pyarrow; it knows
nothing of models, evaluators or executors. This file imports nothing, so that light modules can reach `manifest`.
"""
