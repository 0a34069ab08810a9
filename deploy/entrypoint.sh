#!/bin/sh
# Reads secrets from files: HOLDFAST_URL_FILE=/run/secrets/url sets HOLDFAST_URL. Then becomes the command.
set -eu
for name in HOLDFAST_URL HOLDFAST_TOKEN; do
    eval "file=\${${name}_FILE:-}"
    if [ -n "$file" ]; then
        value=$(cat "$file") || { echo "entrypoint: cannot read ${name}_FILE=$file" >&2; exit 2; }
        export "$name=$value"
        unset "${name}_FILE"
    fi
done
exec "$@"
