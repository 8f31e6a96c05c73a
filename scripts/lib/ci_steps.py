# SPDX-License-Identifier: GPL-2.0 OR MIT
"""Runs the steps of the GitHub Action (ci/github/action.yml) or of a job that extends the GitLab template (ci/gitlab/verbena.yml), as a runner does.
usage: ci_steps.py github|gitlab DIRECTORY NAME=VALUE...

DIRECTORY is the workspace. NAME=VALUE are inputs of the action, or variables of the job. Prints the output of the steps, and exits with the status of
the first that failed. Artifacts are copied to DIRECTORY/../uploaded, and JUnit reports of GitLab to DIRECTORY/../reports. A step that this program
cannot run is an error.
"""
import glob
import os
import pathlib
import re
import shutil
import subprocess
import sys

import yaml

CI = pathlib.Path(__file__).resolve().parents[2] / "ci"


def bash(text, cwd, env):
    """Runs a step as runners do: with -e, and with pipefail on GitHub."""
    return subprocess.run(["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", text], cwd=cwd, env={**os.environ, **env}).returncode


def keep(paths, workspace, place):
    """Copies files and directories, by patterns relative to the workspace. Returns how many there were."""
    found = [path for pattern in paths for path in glob.glob(pattern, root_dir=workspace)]
    for path in found:
        to = workspace.parent / place / path
        to.parent.mkdir(parents=True, exist_ok=True)
        if (workspace / path).is_dir():
            shutil.copytree(workspace / path, to, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy(workspace / path, to)
    return len(found)


def github(workspace, given):
    action = yaml.safe_load((CI / "github/action.yml").read_text())
    unknown = set(given) - set(action["inputs"])
    missing = [name for name, about in action["inputs"].items() if about.get("required") and name not in given]
    if unknown or missing:
        sys.exit(f"inputs that the action does not have: {sorted(unknown)}; that it requires: {missing}")
    inputs = {name: about.get("default", "") for name, about in action["inputs"].items()} | given

    def value(text):
        text = re.sub(r"\$\{\{ *inputs\.([\w-]+) *\}\}", lambda m: inputs[m[1]], str(text))
        if "${{" in text:
            sys.exit(f"an expression that is not an input: {text}")
        return text

    runner = {"GITHUB_ACTION_PATH": str(CI / "github"), "GITHUB_STEP_SUMMARY": str(workspace.parent / "summary.md")}
    status = 0
    for step in action["runs"]["steps"]:
        if status and step.get("if") != "always()":
            continue
        if "run" in step:
            if step["shell"] != "bash":
                sys.exit(f"the shell {step['shell']}")
            ended = bash(step["run"], workspace, runner | {name: value(text) for name, text in step.get("env", {}).items()})
            status = status or ended
        elif step["uses"].split("@")[0] == "actions/upload-artifact":
            keep([value(step["with"]["path"])], workspace, "uploaded")
        else:
            sys.exit(f"the step uses {step['uses']}")
    return status


def gitlab(workspace, given):
    job = yaml.safe_load((CI / "gitlab/verbena.yml").read_text())[".verbena"]
    variables = job["variables"] | given
    status = 0
    for text in job["before_script"] + job["script"]:
        status = bash(text, workspace, variables)
        if status:
            break
    for text in job["after_script"]:
        bash(text, workspace, variables)

    def value(path):
        return re.sub(r"\$(\w+)", lambda m: variables[m[1]], path)

    if job["artifacts"]["when"] != "always" and status:
        return status
    keep(map(value, job["artifacts"]["paths"]), workspace, "uploaded")
    if not keep([value(job["artifacts"]["reports"]["junit"])], workspace, "reports"):
        print("WARNING: no JUnit report")
    return status


if __name__ == "__main__":
    kind, directory, *rest = sys.argv[1:]
    sys.exit({"github": github, "gitlab": gitlab}[kind](pathlib.Path(directory).resolve(), dict(item.split("=", 1) for item in rest)))
