"""`python -m lmtool`, which torchrun starts as well."""

from lmtool.cli import main

if __name__ == "__main__":
    main()
