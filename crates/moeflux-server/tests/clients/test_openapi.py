"""The description of the API, fuzzed: what it allows is answered, what it does not is refused."""

import os
import subprocess
import sys

from conftest import Server


def test_schemathesis_finds_nothing(tmp_path):
    server = Server("--max-tokens", "4", "--queue", "200")
    try:
        # Its check of what must be accepted is the one in openapi_checks.py, which knows what
        # JSON Schema cannot say: how fields depend on the values of others.
        command = [
            os.path.join(os.path.dirname(sys.executable), "schemathesis"),
            "run", server.url + "/openapi.json", "--checks", "all",
            "--exclude-checks", "positive_data_acceptance,negative_data_rejection", "--max-examples", "30", "--seed", "1",
            "--request-timeout", "60", "--workers", "1",
        ]
        here = os.path.dirname(os.path.abspath(__file__))
        env = {**os.environ, "SCHEMATHESIS_HOOKS": "openapi_checks", "PYTHONPATH": here}
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env,
                              cwd=tmp_path)
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    finally:
        assert server.stop() == 0
        assert not any("panicked" in line for line in server.lines), server.lines
