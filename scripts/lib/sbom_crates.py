# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Prints the crates that are linked into Rust programs as an SPDX 2.3 document: `sbom_crates.py CARGO_LOCK CREATED`.

Standard input is the output of `cargo tree --prefix none --format '{p}|{l}'` for the programs: a line `NAME vVERSION ...|LICENCE` for each
crate, several of which may be equal. Crates of the workspace have no checksum in Cargo.lock, and are left out: the Debian packages of the
programs stand for them. A crate that Cargo.lock lacks ends the script.
"""
import hashlib
import json
import re
import sys
import tomllib


def locked(path):
    """Returns the SHA-256 checksum of each crate in a Cargo.lock, None for those of the workspace, by name and version."""
    with open(path, "rb") as f:
        return {(p["name"], p["version"]): p.get("checksum") for p in tomllib.load(f)["package"]}


def linked(lines):
    """Returns the declared licence of each crate in the output of `cargo tree`, by name and version."""
    found = {}
    for line in lines:
        # `cargo tree` separates the programs by empty lines.
        if not line.strip():
            continue
        match = re.fullmatch(r"(\S+) v(\S+)(?: \(.*\))?\|(.*?)(?: \(\*\))?\n?", line)
        if not match:
            raise SystemExit(f"`cargo tree` has the line {line!r}, which is no `NAME vVERSION|LICENCE`")
        found[match[1], match[2]] = match[3]
    return found


def package(name, version, checksum, licence):
    """Returns the entry of a crate."""
    return {
        "SPDXID": "SPDXRef-crate-" + re.sub(r"[^A-Za-z0-9.]", "-", f"{name}-{version}"),
        "name": name,
        "versionInfo": version,
        "primaryPackagePurpose": "LIBRARY",
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "checksums": [{"algorithm": "SHA256", "checksumValue": checksum}],
        "licenseConcluded": "NOASSERTION",
        # Cargo's older form of an alternative.
        "licenseDeclared": licence.replace("/", " OR ") or "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "supplier": "NOASSERTION",
        "externalRefs": [{
            "referenceCategory": "PACKAGE_MANAGER", "referenceType": "purl", "referenceLocator": f"pkg:cargo/{name}@{version}",
        }],
    }


def main():
    lock, created = sys.argv[1:]
    checksums = locked(lock)
    crates = []
    for (name, version), licence in sorted(linked(sys.stdin).items()):
        if (name, version) not in checksums:
            raise SystemExit(f"{lock} has no crate {name} {version}")
        if checksums[name, version]:
            crates.append(package(name, version, checksums[name, version], licence))
    top = {
        "SPDXID": "SPDXRef-programs", "name": "Rust programs of Verbena", "primaryPackagePurpose": "APPLICATION",
        "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
        "licenseDeclared": "GPL-2.0-only OR MIT", "copyrightText": "NOASSERTION", "supplier": "NOASSERTION",
    }
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", top["SPDXID"])]
    relations += ((top["SPDXID"], "DEPENDS_ON", crate["SPDXID"]) for crate in crates)
    unique = hashlib.sha256(json.dumps(crates, sort_keys=True).encode()).hexdigest()
    json.dump({
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": "crates",
        "documentNamespace": f"urn:verbena:crates:{unique}",
        "creationInfo": {"created": created, "creators": ["Tool: sbom_crates.py"]},
        "packages": [top, *crates],
        "relationships": [
            {"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b} for a, kind, b in relations],
    }, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
