#!/usr/bin/env python3
"""Writes a bill of materials (CycloneDX 1.5, JSON) of what is built into the binary: every crate that `cargo metadata` puts into
it on a target, with its version, licence, checksum and who needs whom. From: Cargo.lock and cargo's metadata. To: `make dist`.

    sbom.py [--target x86_64-unknown-linux-gnu] > ironweir.cdx.json
"""
import argparse
import json
import pathlib
import subprocess
import tomllib
import uuid

ROOT = pathlib.Path(__file__).resolve().parent.parent


def metadata(target):
    """Packages and their resolved dependencies for one target, as cargo tells them."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)


def linked(meta, root):
    """Ids of all packages that the binary is linked from: normal and build dependencies, none of tests."""
    nodes = {node["id"]: node for node in meta["resolve"]["nodes"]}
    seen, todo = {}, [root]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        wanted = [d["pkg"] for d in nodes[at]["deps"] if any(k["kind"] != "dev" for k in d["dep_kinds"])]
        seen[at] = sorted(wanted)
        todo += wanted
    return seen


def component(package, checksum):
    """One package as CycloneDX has it."""
    own = package["source"] is None
    purl = f"pkg:cargo/{package['name']}@{package['version']}"
    out = {
        "type": "library",
        "bom-ref": purl,
        "name": package["name"],
        "version": package["version"],
        "purl": purl,
    }
    if package["license"]:
        out["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if checksum:
        out["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    if not own and package["repository"]:
        out["externalReferences"] = [{"type": "vcs", "url": package["repository"]}]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--target", default="x86_64-unknown-linux-gnu")
    arguments = parser.parse_args()
    meta = metadata(arguments.target)
    packages = {p["id"]: p for p in meta["packages"]}
    root = next(p["id"] for p in meta["packages"] if p["name"] == "ironweir")
    lock = tomllib.loads((ROOT / "Cargo.lock").read_text())
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}
    edges = linked(meta, root)

    def ref(package):
        return f"pkg:cargo/{packages[package]['name']}@{packages[package]['version']}"

    def of(package):
        p = packages[package]
        return component(p, checksums.get((p["name"], p["version"])))

    bom = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        # The same for the same contents, so that a build can be compared with another.
        "serialNumber": "urn:uuid:" + str(uuid.uuid5(uuid.NAMESPACE_URL, arguments.target + json.dumps(lock, sort_keys=True))),
        "version": 1,
        "metadata": {
            "component": of(root) | {"type": "application"},
            "properties": [{"name": "ironweir:target", "value": arguments.target}],
        },
        "components": [of(p) for p in sorted(edges, key=ref) if p != root],
        "dependencies": [{"ref": ref(p), "dependsOn": sorted({ref(d) for d in edges[p]})} for p in sorted(edges, key=ref)],
    }
    print(json.dumps(bom, indent=1))


if __name__ == "__main__":
    main()
