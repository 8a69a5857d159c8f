"""What the comparisons of chat templates share: jinja2 with the settings of transformers, and the product."""

import datetime
import json
import struct
import subprocess

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

# 2024-07-06 is a Saturday; all fields of the clock differ from each other.
NOW = datetime.datetime(2024, 7, 6, 17, 4, 3, 120045)


class Refused(Exception):
    """A template that gives no text: it is malformed, or something in it fails."""


class Generation(jinja2.ext.Extension):
    """The tags around what an assistant said, which transformers uses to find tokens. They print what they contain."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_print"), [], [], body).set_lineno(line)

    def _print(self, caller):
        return caller()


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def reference_environment():
    """The environment in which transformers renders chat templates."""
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


def reference(env, source, variables):
    try:
        return env.from_string(source).render(**variables)
    except Exception as err:  # Python code of a template may raise anything.
        raise Refused(f"{type(err).__name__}: {err}") from err


class Product:
    """The child process in which the binary renders templates; text::renderer describes its protocol."""

    def __init__(self, binary):
        self.binary = binary
        self.child = None

    def render(self, source, variables):
        if self.child is None:
            self.child = subprocess.Popen(
                [self.binary, "@render-chat-templates"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        for part in (source, json.dumps(variables), NOW.isoformat()):
            data = part.encode()
            self.child.stdin.write(struct.pack("<Q", len(data)) + data)
        self.child.stdin.flush()
        # Whether it worked, the processor time in microseconds, and the length of what follows.
        head = self.child.stdout.read(17)
        if len(head) < 17:
            status = self.child.wait()
            self.child = None
            raise Refused(f"the renderer ended with {status}")
        succeeded, _, size = struct.unpack("<?QQ", head)
        text = self.child.stdout.read(size).decode()
        if not succeeded:
            raise Refused(text)
        return text

    def close(self):
        if self.child is not None:
            self.child.stdin.close()
            self.child.wait()


def result(render):
    """The text, or None and the reason why there is none."""
    try:
        return render(), ""
    except Refused as err:
        return None, str(err)
