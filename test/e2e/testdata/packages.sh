# Makes what TestPackages installs: a Debian package in a repository, two Python
# packages and an npm package. Each has a program that says its own name.
set -e
umask 022

mkdir -p /tmp/deb/DEBIAN /tmp/deb/usr/bin /tmp/repo
cat >/tmp/deb/DEBIAN/control <<-'END'
	Package: drowse-hello
	Version: 1
	Architecture: all
	Maintainer: nobody <nobody@localhost>
	Depends: libc6, bash
	Description: says its name
END
printf '#!/bin/sh\nset -e\nadduser --system --group --no-create-home --quiet hello\nchown hello:hello /usr/bin/drowse-hello\necho "installed by $1" >/var/log/drowse-hello\n' >/tmp/deb/DEBIAN/postinst
printf '#!/bin/sh\necho drowse-hello\n' >/tmp/deb/usr/bin/drowse-hello
chmod 755 /tmp/deb/DEBIAN/postinst /tmp/deb/usr/bin/drowse-hello
dpkg-deb --root-owner-group --build /tmp/deb /tmp/repo/drowse-hello_1_all.deb >/dev/null
cd /tmp/repo
{
	cat /tmp/deb/DEBIAN/control
	echo "Filename: ./drowse-hello_1_all.deb"
	echo "Size: $(stat -c %s drowse-hello_1_all.deb)"
	echo "SHA256: $(sha256sum drowse-hello_1_all.deb | cut -d' ' -f1)"
} >Packages
echo 'deb [trusted=yes] file:/tmp/repo ./' >sources.list

python3 - <<'END'
import zipfile
for name in "pip", "root":
    module, info = f"drowse_hello_{name}", f"drowse_hello_{name}-1.dist-info"
    with zipfile.ZipFile(f"/tmp/{module}-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", f"def main(): print('drowse-hello-{name}')\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/entry_points.txt", f"[console_scripts]\ndrowse-hello-{name} = {module}:main\n")
        wheel.writestr(f"{info}/RECORD", "")
END

mkdir -p /tmp/npm-hello
echo '{"name": "drowse-hello-npm", "version": "1.0.0", "bin": {"drowse-hello-npm": "hello.js"}}' >/tmp/npm-hello/package.json
printf '#!/usr/bin/env node\nconsole.log("drowse-hello-npm")\n' >/tmp/npm-hello/hello.js
