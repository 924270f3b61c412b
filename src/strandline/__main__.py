"""`python -m strandline` and the `strandline` command."""

from __future__ import annotations

import sys


def main() -> None:
    """The command line: exits with 0 done, 1 failed, 2 usage or config, 3 work pending (if asked), 130 Ctrl-C."""
    from strandline.cli.app import execute

    sys.exit(execute(sys.argv[1:]))


if __name__ == "__main__":
    main()
