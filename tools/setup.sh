#!/bin/sh
# Makes .venv with everything the demo, the tests and the benchmarks need. Installs Java and python3-venv if it may.
# With the word "browser": installs Chromium, which only the tests of the dashboard need. With the word "mariadb": a MariaDB.
set -eu
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
may_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
install() {
    say "installing $*"
    { apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends "$@"; } >/dev/null
}

if [ "${1:-}" = browser ]; then
    command -v chromium >/dev/null || command -v google-chrome >/dev/null ||
        { may_install && install chromium fonts-dejavu-core; } ||
        say "no Chromium: for the tests in a browser run (as root) apt-get install chromium"
    exit 0
fi

if [ "${1:-}" = mariadb ]; then
    if ! PATH="$PATH:/usr/sbin" command -v mariadbd >/dev/null; then
        may_install || { say "no MariaDB: for what needs one run (as root) apt-get install mariadb-server"; exit 0; }
        install mariadb-server
    fi
    exit 0
fi

python=
for name in ${PYTHON:-python3 python3.13 python3.12 python3.11}; do
    if "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$name; break; fi
done
[ "$python" ] || { say "Python 3.11 or newer was not found: install it, or run make PYTHON=/path/to/python3"; exit 1; }
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    may_install || { say "$python cannot make environments: run (as root) apt-get install python$version-venv"; exit 1; }
    install "python$version-venv"
fi

[ -x .venv/bin/python ] && .venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv
say "installing the locked packages into .venv"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/build.txt
# uv is quick; pip knows an index from pip.conf, which uv does not read.
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-build-isolation --require-hashes \
    -r requirements/dev.txt ||
    .venv/bin/python -m pip install --quiet --no-build-isolation --require-hashes -r requirements/dev.txt
.venv/bin/python -m pip install --quiet --no-build-isolation --no-deps --editable .
.venv/bin/python -m compileall -q src

find_java() {
    .venv/bin/python - <<'PYTHON'
import sys
from strandline.core.errors import SetupError
from strandline.spark.java import find_java
try:
    find_java()
except SetupError as error:
    sys.exit(error.explain())
PYTHON
}
if ! find_java 2>/dev/null && may_install; then
    install openjdk-17-jre-headless 2>/dev/null || install default-jre-headless
fi
find_java

say "preparing Spark, once: jars and class archive"
.venv/bin/python -m strandline.spark.archive delta postgresql
