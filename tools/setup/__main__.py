"""`python3 tools/setup`: makes .venv and builds the extension. `make setup` is the usual way in.

Runs on the machine's own Python, before any environment exists: standard library only.
This file keeps to syntax that old Pythons parse, so that they get a sentence and not a SyntaxError.
"""

import sys

OLDEST_PYTHON = (3, 11)

if sys.version_info < OLDEST_PYTHON:
    sys.stderr.write(
        "error: Python 3.11 or newer is needed, this is {}.{}: apt-get install -y python3.11 python3.11-venv "
        "python3.11-dev, then make setup PYTHON=python3.11\n".format(*sys.version_info[:2])
    )
    sys.exit(2)

from run import main  # noqa: E402

sys.exit(main(sys.argv[1:]))
