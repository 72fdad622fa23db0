"""`python -m ade`: the command line."""

from ade.cli.main import main

if __name__ == "__main__":
    main()
