"""`python -m tandemmq`, and the `tandemmq` command."""

from __future__ import annotations


def main() -> None:
    """Runs the command line; the process ends with its exit code."""
    from tandemmq.cli import app

    app()


if __name__ == "__main__":
    main()
