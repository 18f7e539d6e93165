#!/usr/bin/env bash
# Builds the image verl-gui-desktop: Debian with Xvfb, openbox, a few programs and the guest server.
# It needs mmdebstrap and docker, a Debian mirror, and no registry.
#   usage: build_image.sh [PACKAGE...]      further Debian packages, such as libreoffice-writer
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
packages="xvfb openbox wmctrl xdotool xclip x11-utils xterm mousepad pcmanfm galculator sudo python3 python3-tk
python3-xlib python3-pil python3-pip fonts-dejavu-core $*"

cat > "$work/entrypoint" <<'SCRIPT'
#!/bin/sh
# PID 1: SIGTERM has to reach Xvfb, or `docker stop` waits ten seconds.
mkdir -p /tmp/framebuffer
Xvfb :0 -screen 0 "${SCREEN:-1920x1080}x24" -dpi 96 -nolisten tcp -s 0 -dpms -fbdir /tmp/framebuffer &
x=$!
trap 'kill $x; exit 0' TERM INT
until xdpyinfo -display :0 >/dev/null 2>&1; do sleep 0.05; done
export DISPLAY=:0 PYTHONPATH=/opt/guest/site GUEST_FRAMEBUFFER=/tmp/framebuffer/Xvfb_screen0
python3 -m guest_server --port 5000 --openbox-config /opt/guest/openbox.xml &
wait $x
SCRIPT

mmdebstrap --variant=apt --include="$(echo $packages | tr ' ' ',')" \
    --customize-hook="mkdir -p \"\$1/opt/guest/site/guest_server\"" \
    --customize-hook="copy-in $here/../guest/inside/*.py /opt/guest/site/guest_server" \
    --customize-hook="upload $here/../desktop/rc.xml /opt/guest/openbox.xml" \
    --customize-hook="upload $work/entrypoint /opt/guest/entrypoint" \
    --customize-hook='chroot "$1" python3 -m pip install -q --break-system-packages pyautogui pyperclip' \
    --customize-hook='chroot "$1" sh -c "chmod 755 /opt/guest/entrypoint; ln -sf python3 /usr/bin/python"' \
    --customize-hook='chroot "$1" useradd -m -s /bin/bash -u 1000 user' \
    bookworm "$work/image.tar"
docker import \
    --change 'ENTRYPOINT ["/opt/guest/entrypoint"]' --change 'USER user' --change 'WORKDIR /home/user' \
    --change 'ENV HOME=/home/user' --change 'EXPOSE 5000' \
    "$work/image.tar" verl-gui-desktop
