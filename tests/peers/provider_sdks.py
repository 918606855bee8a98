"""Calls a gateway by the official SDK of a provider, as an application does.

Arguments: openai or anthropic, and the gateway's URL. Reads a JSON list of [path, retries]: below each path is the
provider's API, which is called once, with at most so many retries; null is the SDK's own number. Prints a JSON list with
an object for each: the error's class, type and code, if there was one, the header fields about limits of the last
response, and the seconds that the SDK says that it waits before each retry.
"""

import importlib
import json
import logging
import os
import re
import sys

sdk, url = sys.argv[1:]
# The gateway is on this machine.
os.environ["NO_PROXY"] = "127.0.0.1"
library = importlib.import_module(sdk)

waits = []


class Waits(logging.Handler):
    def emit(self, record):
        said = re.search(r"Retrying request .*?([0-9.]+) seconds", record.getMessage())
        if said:
            waits.append(float(said[1]))


logger = logging.getLogger(f"{sdk}._base_client")
logger.setLevel(logging.INFO)
logger.addHandler(Waits())

MESSAGES = [{"role": "user", "content": "hi"}]


def call(path, retries):
    options = {} if retries is None else {"max_retries": retries}
    if sdk == "openai":
        client = library.OpenAI(base_url=f"{url}/{path}/v1", api_key="key", **options)
        return client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES)
    client = library.Anthropic(base_url=f"{url}/{path}", api_key="key", **options)
    return client.messages.with_raw_response.create(model="m", max_tokens=9, messages=MESSAGES)


def outcome(path, retries):
    waits.clear()
    error = None
    try:
        response = call(path, retries)
        response.parse()
    except library.APIStatusError as failure:
        response = failure.response
        error = [type(failure).__name__, failure.type, getattr(failure, "code", None)]
    names = ("ratelimit", "retry")
    fields = {
        name: value
        for name, value in sorted(response.headers.items())
        if any(part in name for part in names)
    }
    return {"error": error, "fields": fields, "waits": list(waits)}


print(json.dumps([outcome(path, retries) for path, retries in json.load(sys.stdin)]))
