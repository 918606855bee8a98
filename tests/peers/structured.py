"""Structured fields (RFC 9651) as a parser in Python reads them.

Reads a JSON list of [type, value], such as ["list", "1, a;q=2"]. Prints a JSON list of what the values mean: an item is
[value, parameters]. A value that isn't a structured field of that type is an error.
"""

import json
import sys

import http_sf

fields = json.load(sys.stdin)
read = (http_sf.parse(value.encode("ascii"), tltype=kind) for kind, value in fields)
print(json.dumps([json.loads(http_sf.to_json(value)) for value in read]))
