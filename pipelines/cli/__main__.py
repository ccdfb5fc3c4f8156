"""`python -m pipelines.cli`."""

from pipelines.cli.entry import main

main()
