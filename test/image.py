#!/usr/bin/env python3
"""image.py IMAGE.tar DIR: verifies an OCI image layout, and unpacks it to DIR: its layers
as 0.tar, 1.tar …, and what an engine takes from its configuration, one word a line."""

import gzip
import hashlib
import json
import pathlib
import shutil
import sys
import tarfile
from datetime import datetime

image, out = tarfile.open(sys.argv[1]), pathlib.Path(sys.argv[2])
shutil.rmtree(out, ignore_errors=True)
out.mkdir(parents=True)


def blob(descriptor):
    kind, digest = descriptor["digest"].split(":")
    data = image.extractfile(f"blobs/{kind}/{digest}").read()
    assert hashlib.new(kind, data).hexdigest() == digest and len(data) == descriptor["size"], descriptor
    return data


assert json.load(image.extractfile("oci-layout"))["imageLayoutVersion"] == "1.0.0"
(entry,) = json.load(image.extractfile("index.json"))["manifests"]
manifest = json.loads(blob(entry))
config = json.loads(blob(manifest["config"]))
for n, layer in enumerate(manifest["layers"]):
    data = gzip.decompress(blob(layer))
    assert "sha256:" + hashlib.sha256(data).hexdigest() == config["rootfs"]["diff_ids"][n], layer
    (out / f"{n}.tar").write_bytes(data)
run = config["config"]
assert run["Volumes"] == {"/var/lib/drowse": {}}, run
for name, lines in {
    "env": run["Env"],
    "command": run["Entrypoint"] + run["Cmd"],
    "version": [run["Labels"]["org.opencontainers.image.version"]],
    "created": [str(int(datetime.fromisoformat(config["created"].replace("Z", "+00:00")).timestamp()))],
}.items():
    (out / name).write_text("".join(line + "\n" for line in lines))
