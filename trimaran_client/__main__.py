"""Run the command line: ``python -m trimaran_client``."""

from trimaran_client.cli import main

if __name__ == "__main__":
    main()
