"""Writes the model's answers into traces: `python3 tests/redis/conformance/record.py traces/new-*.json`.

A trace has all that README.md lists but the answers, which are written anew where it has them. Composites are not among them.
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


def answers(state, blocks, op, receipts):
    now, cost = op["at_us"], op.get("cost", 1)
    answer = {}
    receipt = None
    if op["op"] == "take":
        n = 0 if blocks and blocks.left(now) else op.get("n", 1)
        answer["admitted"], receipt = state.take(now, n, cost)
    elif op["op"] == "force":
        receipt = state.force(now, op["units"])
    elif op["op"] == "give":
        answer["given"] = state.give(now, receipts[op["of"]], op["units"])
    elif op["op"] in ("block", "prolong"):
        getattr(blocks, op["op"])(now, op["time_us"])
    elif op["op"] == "unblock":
        blocks.unblock()
    elif op["op"] == "reset":
        state.reset()
        if blocks:
            blocks.unblock()
    receipts.append(receipt)
    if blocks:
        answer["blocked_us"] = blocks.left(now)
    if op["op"] == "reset":
        return answer
    answer["remaining"], answer["retry_after_us"], answer["reset_after_us"] = state.look(now, cost)
    if state.ttl:
        answer["limit"] = state.capacity
    if state.tie:
        answer["tie"] = True
    return answer


def record(trace):
    state, receipts = strategy(trace), []
    blocks = model.Blocks() if trace.get("blocks") else None
    for op in trace["ops"]:
        for name in ("admitted", "given", "remaining", "retry_after_us", "reset_after_us", "limit", "tie", "blocked_us"):
            op.pop(name, None)
        op.update(answers(state, blocks, op, receipts))


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
