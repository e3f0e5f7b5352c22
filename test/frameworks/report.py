"""Writes what frameworks did, as the page docs/results/frameworks.md."""

import json
import sys

print("""# Agents' frameworks

Written by `make frameworks`: each framework's published package, unmodified, drives a server with `--domain` and TLS. A scripted model takes the place of a language model. How each is pointed here: [works with](../works-with.md#agents-frameworks).

| Framework | Version | What it did |
|---|---|---|""")
done = {}
for line in open(sys.argv[1]):
    step = json.loads(line)
    done.setdefault((step["framework"], step["version"]), []).append(step["step"])
for (framework, version), steps in sorted(done.items()):
    print(f"| {framework} | {version} | {'; '.join(steps)} |")
