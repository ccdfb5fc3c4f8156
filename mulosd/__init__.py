"""mulosd: decode, score and compare autoregressive image generators accelerated by speculative decoding.

The package root stays light: importing it loads neither torch nor any other heavy library.
"""

__version__ = "0.1.0"
