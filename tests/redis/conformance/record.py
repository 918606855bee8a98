"""Writes the model's answers into traces: `python3 tests/redis/conformance/record.py tests/redis/conformance/traces/*.json`.

A trace has all that README.md lists but the answers, which are written anew where it has them.
"""
import json
import sys

import model


def strategy(trace):
    quota, options = trace["quota"], trace["options"]
    named = {name: options[name] for name in ("buckets", "offset", "starts") if name in options}
    state = model.STRATEGIES[trace["strategy"]](quota["requests"], quota["period_us"], quota["burst"], **named)
    if "lease" in trace:
        state.lease(trace["lease"]["ttl_us"])
    return state


def answers(parts, blocks, op, receipts):
    """What the parts of a trace answer: several of a composite, which are charged all or none."""
    now, costs = op["at_us"], op.get("costs") or [op.get("cost", 1)] * len(parts)
    each = list(zip(parts, costs))
    answer = {}
    receipt = None
    if op["op"] == "take":
        n = 0 if blocks and blocks.left(now) else op.get("n", 1)
        fits = [n] + [part.room(now) // cost for part, cost in each if cost]
        answer["admitted"] = max(0, min(fits))
        receipt = [part.take(now, answer["admitted"], cost)[1] for part, cost in each]
    elif op["op"] == "force":
        receipt = [part.force(now, op["units"]) for part in parts]
    elif op["op"] == "give":
        given = [part.give(now, one, op["units"]) for part, one in zip(parts, receipts[op["of"]])]
        answer["given"] = given if len(given) > 1 else given[0]
    elif op["op"] in ("block", "prolong"):
        getattr(blocks, op["op"])(now, op["time_us"])
    elif op["op"] == "unblock":
        blocks.unblock()
    elif op["op"] == "reset":
        for part in parts:
            part.reset()
        if blocks:
            blocks.unblock()
    receipts.append(receipt)
    if blocks:
        answer["blocked_us"] = blocks.left(now)
    if op["op"] == "reset":
        return answer
    looks = [look(part, now, cost) for part, cost in each]
    if len(looks) == 1:
        return answer | looks[0]
    waits = [one["retry_after_us"] for one in looks]
    answer["retry_after_us"] = None if None in waits else max(waits)
    answer["policies"] = looks
    return answer


def look(part, now, cost):
    names = ("remaining", "retry_after_us", "reset_after_us")
    answer = dict(zip(names, part.look(now, cost)))
    if part.ttl:
        answer["limit"] = part.capacity
    if part.tie:
        answer["tie"] = True
    return answer


def record(trace):
    parts, receipts = [strategy(part) for part in trace.get("policies", [trace])], []
    blocks = model.Blocks() if trace.get("blocks") else None
    for op in trace["ops"]:
        for name in ("admitted", "given", "remaining", "retry_after_us", "reset_after_us", "limit", "tie", "blocked_us", "policies"):
            op.pop(name, None)
        op.update(answers(parts, blocks, op, receipts))


def text(trace):
    """A line for each op."""
    head = {name: value for name, value in trace.items() if name != "ops"}
    ops = ",\n".join(json.dumps(op) for op in trace["ops"])
    return f'{json.dumps(head)[:-1]}, "ops": [\n{ops}\n]}}\n'


if __name__ == "__main__":
    for path in sys.argv[1:]:
        with open(path) as file:
            trace = json.load(file)
        record(trace)
        with open(path, "w") as file:
            file.write(text(trace))
