"""`python -m strandline` and the `strandline` command."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """The command line: exits with 0 done, 1 failed, 2 usage or config, 3 work pending (if asked), 130 Ctrl-C."""
    gc.set_threshold(50_000, 20, 20)  # imports make many objects and no garbage: looking for it took a tenth
    from strandline.cli.app import execute

    code = execute(sys.argv[1:])
    gc.freeze()  # Python would look through everything once more before it ends: a third of a sync with nothing new
    sys.exit(code)


if __name__ == "__main__":
    main()
