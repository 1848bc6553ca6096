"""Puts what a recording left in its folder into the data files, in an order that does not change."""

import argparse
import gzip
import json
import pathlib

ORDER = ("allocator", "family", "operation", "dtype", "options", "height", "width", "frames", "batch", "tokens", "run")


def lines(path):
    opened = gzip.open(path, "rt") if path.suffix == ".gz" else open(path)
    with opened as file:
        return [json.loads(text) for text in file]


def order(line):
    return [json.dumps(line.get(k), sort_keys=True).rjust(8) for k in ORDER]


def text(found, separators=None):
    return "".join(json.dumps(line, separators=separators) + "\n" for line in found)


def conv_order():
    import convolutions

    calls = [call for d in ("fp16", "bf16", "fp32") for f in (convolutions.flat_calls, convolutions.deep_calls) for call in f(d)]
    return {json.dumps(call): i for i, call in reversed(list(enumerate(calls)))}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recorded", type=pathlib.Path)
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--set", choices=("held-out", "fresh"), default="held-out", help="which cases were recorded")
    arguments = parser.parse_args()
    windows = sorted(lines(arguments.recorded / "windows.jsonl"), key=order)
    (arguments.data / f"windows-{arguments.set}.jsonl").write_text(text(windows))
    if arguments.set == "fresh":
        return print(f"{len(windows)} windows")
    traces = sorted(lines(arguments.recorded / "traces.jsonl.gz"), key=order)
    packed = gzip.compress(text(traces, (",", ":")).encode(), 9, mtime=0)
    (arguments.data / "trace-held-out-native.jsonl.gz").write_bytes(packed)
    place = conv_order()
    keys = ("op", "dtype", "layout", "batch", "channels", "size", "kernel", "stride", "pad")
    found = {json.dumps({k: c[k] for k in keys}): c for c in lines(arguments.recorded / "conv.jsonl")}
    convs = [found[key] for key in sorted(found, key=place.__getitem__)]
    (arguments.data / "conv-workspaces.jsonl").write_text(text(convs, (",", ":")))
    print(f"{len(traces)} traces, {len(windows)} windows, {len(convs)} convolution calls of {sum(1 for _ in place)}")


if __name__ == "__main__":
    main()
