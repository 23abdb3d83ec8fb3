#!/usr/bin/env bash
# Runs the quick and the core suite on every device of this machine and keeps the surveys under $REPORTS (default reports).
# AMP_PROBE is the command to run; "python3 -m amp_probe" serves where only PYTHONPATH is set.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
reports=${REPORTS:-reports}
read -r -a amp_probe <<<"${AMP_PROBE:-amp-probe}"
export AMP_PROBE_STORE=$reports
"${amp_probe[@]}" env
"${amp_probe[@]}" run --suite quick
"${amp_probe[@]}" run --suite core
"${amp_probe[@]}" show "$reports/surveys" >"$reports/matrix.txt"
"${amp_probe[@]}" report "$reports/surveys" --html -o "$reports/index.html"
echo "surveys: $reports/surveys, the page: $reports/index.html" >&2
