"""`python -m tandemmq`, and the `tandemmq` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command line; the process ends with its exit code."""
    if sys.argv[1:] == ["--version"]:
        # Scripts call this often: the answer needs none of the commands' imports.
        from tandemmq import __version__

        sys.stdout.write(f"tandemmq {__version__}\n")
        return
    from tandemmq.cli import app

    app()


if __name__ == "__main__":
    main()
