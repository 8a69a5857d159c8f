"""The description of the API, fuzzed: what it allows is answered, what it does not is refused."""

import os
import subprocess
import sys

from openapi_spec_validator import OpenAPIV31SpecValidator

from conftest import MODEL, Server


def test_the_description_is_valid_and_says_what_the_model_has(http):
    description = http.get("/openapi.json").json()
    OpenAPIV31SpecValidator(description).validate()
    schemas = description["components"]["schemas"]
    assert schemas["ChatRequest"]["properties"]["model"]["enum"] == [MODEL, None]
    assert schemas["DetokenizeRequest"]["properties"]["tokens"]["items"]["maximum"] == 8191
    fields = [field for schema in schemas.values() for field in schema.get("properties", {}).values()]
    assert len(fields) > 200 and all(field["description"] for field in fields)


def test_schemathesis_finds_nothing(tmp_path):
    server = Server("--max-tokens", "4", "--queue", "200")
    try:
        # Its check of what must be accepted is the one in openapi_checks.py, which knows what
        # JSON Schema cannot say: how fields depend on the values of others.
        command = [
            os.path.join(os.path.dirname(sys.executable), "schemathesis"),
            "run", server.url + "/openapi.json", "--checks", "all",
            "--exclude-checks", "positive_data_acceptance", "--max-examples", "30", "--seed", "1",
            "--request-timeout", "60", "--workers", "1",
        ]
        here = os.path.dirname(os.path.abspath(__file__))
        env = {**os.environ, "SCHEMATHESIS_HOOKS": "openapi_checks", "PYTHONPATH": here}
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, env=env,
                              cwd=tmp_path)
        shown = "\n".join(line[:2000] for line in done.stdout.splitlines())
        assert done.returncode == 0, shown[-8000:] + done.stderr[-2000:]
    finally:
        assert server.stop() == 0
        assert not any("panicked" in line for line in server.lines), server.lines
