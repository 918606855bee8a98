"""Compares descriptors with those that `protoc` makes of a definition: descriptors.py FOLDER FILE

With TOLLGATE_WRITE_DESCRIPTORS it writes the file anew.
"""

import os
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

folder, file = sys.argv[1:]
googles = Path(grpc_tools.__file__).parent / "_proto"
with tempfile.NamedTemporaryFile() as output:
    flags = [f"-I{folder}", f"-I{googles}", "--include_imports", f"--descriptor_set_out={output.name}"]
    assert protoc.main(["protoc", *flags, "envoy/service/ratelimit/v3/rls.proto"]) == 0
    compiled = Path(output.name).read_bytes()
if "TOLLGATE_WRITE_DESCRIPTORS" in os.environ:
    Path(file).write_bytes(compiled)
elif compiled != Path(file).read_bytes():
    sys.exit(f"{file} is out of date: run the test with TOLLGATE_WRITE_DESCRIPTORS=1")
