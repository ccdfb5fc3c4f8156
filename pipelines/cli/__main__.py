"""`python -m pipelines.cli`."""

from pipelines.cli.main import main

main()
