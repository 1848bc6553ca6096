"""Records PyTorch's memory behaviour on one GPU: windows, traces and convolution workspaces.

Without a subcommand it runs every job, several at a time in processes of their own; `job` runs one.
"""

import argparse
import fcntl
import gzip
import json
import os
import pathlib
import subprocess
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent
STORED = HERE.parent / "h200"
ALLOCATORS = {"native": "", "expandable_segments": "expandable_segments:True", "cuda_malloc_async": "backend:cudaMallocAsync"}
COMPARED = ("weights_bytes", "baseline_allocated", "baseline_reserved", "allocated_peak_delta", "reserved_peak_delta", "driver_delta")


def append(path, value):
    """Adds one line to a file that several processes write; a stop in between loses only this line."""
    line = (json.dumps(value, separators=(",", ":")) + "\n").encode()
    if path.suffix == ".gz":
        line = gzip.compress(line, mtime=0)
    with open(path, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(line)


def identity(line):
    options = line.get("options") or {}
    keys = ("family", "operation", "dtype", "width", "height", "frames", "batch", "tokens", "allocator")
    return (*(line.get(k) for k in keys), json.dumps(options, sort_keys=True))


def known_recordings(which):
    """The recordings that were there before the cases of this set were."""
    names = ["windows.jsonl", "windows-options.jsonl"]
    return [STORED / name for name in names + ["windows-held-out.jsonl"] * (which == "fresh")]


def stored_windows(which):
    found = {}
    for path in known_recordings(which):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            found.setdefault((identity(line), line["kind"]), line)
    return found


def stored_traces():
    with gzip.open(STORED / "trace-native.jsonl.gz", "rt") as file:
        return [json.loads(text) for text in file]


class Worker:
    """One process: one allocator, one model at a time."""

    def __init__(self, arguments):
        import torch

        import measure

        self.torch, self.measure = torch, measure
        self.out, self.allocator, self.place = arguments.out, arguments.allocator, arguments.place
        self.driver = measure.Driver()
        self.device = torch.device("cuda:0")
        torch.cuda.init()
        self.host = measure.host(self.driver)
        self.built, self.module = None, None

    def model(self, case):
        import models

        options = {k: v for k, v in case["options"].items() if k in ("channels_last", "activation")}
        wanted = (case["family"], case["operation"].split("_")[0], case["dtype"], options)
        if wanted != self.built:
            self.module = None
            self.measure.quiet()
            self.module = models.build(case["family"], case["operation"], case["dtype"], self.device, self.place, options)
            self.built = wanted
        return self.module, models.operation(self.module, case, self.device)

    def windows(self, case, stored):
        module, run = self.model(case)
        head = {k: v for k, v in case.items() if k != "options" or v}
        weights = sum(p.numel() * p.element_size() for p in module.parameters())
        for index, kind in enumerate(("warmup", "measured", "measured")):
            line = dict(head, allocator=self.allocator, kind=kind, run=index, weights_bytes=weights)
            line.update(self.measure.window(run, case["options"], self.driver), **self.host)
            known = stored.get((identity(line), kind))
            if known is None:
                append(self.out / "windows.jsonl", line)
                continue
            pairs = {k: [known[k], line[k]] for k in COMPARED if k in known}
            append(self.out / "verify.jsonl", dict(
                identity=identity(line), kind=kind, place=self.place,
                equal=all(a == b for a, b in pairs.values()), stored_then_now=pairs))

    def trace(self, case, stored):
        module, run = self.model(case)
        self.measure.quiet()
        with self.torch.inference_mode(), self.measure.attention(case["options"]):
            run()
        traced = self.measure.trace(run, case["options"])
        head = {k: case[k] for k in ("family", "dtype", "operation", "width", "height", "frames", "batch", "tokens")}
        if case["options"]:
            head["options"] = case["options"]
        for known in stored:
            if all(known[k] == head.get(k) for k in ("family", "dtype", "operation", "width", "height", "frames")) and not case["options"]:
                order = [[(a, s) for a, _, s in t["events"] if a in ("alloc", "free_requested")] for t in (known, traced)]
                append(self.out / "verify.jsonl", dict(
                    trace=head, events=[len(known["events"]), len(traced["events"])], equal=order[0] == order[1],
                    before=[known["before"], traced["before"]], after=[known["after"], traced["after"]]))
                return
        named = self.measure.places(module, run, case["options"], traced["events"])
        append(self.out / "traces.jsonl.gz", dict(self.host, allocator=self.allocator, **head, **traced, **named))


def job(arguments):
    """Runs the cases of one job; a case that fails is reported and the next one goes on."""
    import cases

    kind, _, name = arguments.name.partition(":")
    worker = Worker(arguments)
    if kind != "alone":
        worker.measure.set_up_products(worker.device)
    if kind == "conv":
        import convolutions

        op, _, dtype = name.partition("-")
        todo = (convolutions.flat_calls if op == "flat" else convolutions.deep_calls)(dtype)
        step = lambda call: append(arguments.out / "conv.jsonl", convolutions.record(call, worker.device))
        todo = [call for call in todo if not convolutions.too_large(call)]
    elif kind == "trace":
        stored = stored_traces()
        todo, step = cases.TRACES[name][1], lambda case: worker.trace(case, stored)
    else:
        which = "held-out" if kind == "alone" else kind
        stored = stored_windows(which)
        todo = cases.ALONE[arguments.allocator] if kind == "alone" else cases.WINDOWS[which][name][1]
        step = lambda case: worker.windows(case, stored)
    for case in todo:
        try:
            step(case)
        except Exception as error:
            append(arguments.out / "failed.jsonl", dict(
                job=arguments.name, allocator=arguments.allocator, case=case,
                error=str(error).splitlines()[:1], at=traceback.format_exc().splitlines()[-6:]))
            worker.module, worker.built = None, None
            worker.measure.quiet()


def jobs(which):
    """Every job of a set in the order of its worth: (name, allocator, GiB it may use)."""
    import cases

    if which == "fresh":
        return [(f"fresh:{n}", a, gib) for n, (gib, _) in cases.WINDOWS[which].items() for a in ALLOCATORS]
    # The long ones first, so that none is left running alone.
    todo = [(f"trace:{n}", "native", cases.TRACES[n][0]) for n in ("transformer", "unet", "video-vaes", "other-vaes", "sdxl-half", "sdxl-single")]
    todo += [(f"conv:{op}-{d}", "native", 24) for op in ("flat", "deep") for d in ("fp16", "bf16", "fp32")]
    for allocator in ALLOCATORS:
        todo += [(f"held-out:{n}", allocator, gib) for n, (gib, _) in cases.WINDOWS[which].items()]
    return todo


def chosen_place(out):
    """The way of placing weights under which most of the recorded numbers come out equal."""
    scores = {"construct": 0, "apply": 0}
    for text in (out / "verify.jsonl").read_text().splitlines():
        line = json.loads(text)
        scores[line["place"]] += sum(a == b for a, b in line["stored_then_now"].values())
    print("equal numbers by placement:", scores, flush=True)
    return max(scores, key=scores.get)


class Pool:
    """Runs jobs in processes while device memory and slots last; stops them all at the deadline."""

    def __init__(self, arguments):
        self.arguments, self.running = arguments, []
        self.end = time.monotonic() + arguments.deadline
        self.begin = time.monotonic()

    def start(self, name, allocator, gib, place):
        environment = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=ALLOCATORS[allocator], OMP_NUM_THREADS="2", PYTHONUNBUFFERED="1")
        command = [sys.executable, __file__, "--out", str(self.arguments.out), "job", name, allocator, place]
        with open(self.arguments.out / "log.txt", "ab") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self.running.append((process, name, allocator, gib, time.monotonic()))

    def reap(self):
        for entry in list(self.running):
            process, name, allocator, _, begin = entry
            if process.poll() is not None:
                self.running.remove(entry)
                now = time.monotonic()
                print(f"{now - self.begin:6.1f}s {name} {allocator}: rc {process.returncode} in {now - begin:.1f}s", flush=True)

    def run(self, todo, place):
        todo = list(todo)
        while (todo or self.running) and time.monotonic() < self.end:
            self.reap()
            used = sum(entry[3] for entry in self.running)
            for entry in todo:
                if len(self.running) < self.arguments.slots and used + entry[2] <= self.arguments.gib:
                    todo.remove(entry)
                    self.start(*entry, place)
                    break
            else:
                time.sleep(0.2)
        for process, name, allocator, _, _ in self.running:
            process.kill()
            print(f"stopped at the deadline: {name} {allocator}", flush=True)
        for name, allocator, _ in todo:
            print(f"not started: {name} {allocator}", flush=True)
        self.running = []


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--set", choices=("held-out", "fresh"), default="held-out", help="which cases")
    parser.add_argument("--deadline", type=float, default=3600, help="seconds after which all jobs are stopped")
    parser.add_argument("--slots", type=int, default=7)
    parser.add_argument("--gib", type=float, default=128, help="device memory that jobs may use together")
    parser.add_argument("--only", default="", help="comma-separated parts of 'name allocator' of the jobs to run")
    parser.add_argument("--placement", choices=("construct", "apply"), help="skip the check that chooses it")
    commands = parser.add_subparsers(dest="command")
    one = commands.add_parser("job")
    one.add_argument("name")
    one.add_argument("allocator", choices=list(ALLOCATORS))
    one.add_argument("place", choices=("construct", "apply"))
    arguments = parser.parse_args()
    if arguments.command == "job":
        return job(arguments)
    if arguments.set == "fresh":
        import cases

        again = cases.seen_before(known_recordings("fresh"))
        if again:
            sys.exit(f"not fresh: {again}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    pool, place = Pool(arguments), arguments.placement
    if place is None:
        for way in ("construct", "apply"):
            for allocator in ("native", "cuda_malloc_async"):
                pool.start("alone:", allocator, 8, way)
        while pool.running:
            pool.reap()
            time.sleep(0.1)
        place = chosen_place(arguments.out)
    wanted = [part for part in arguments.only.split(",") if part]
    pool.run([j for j in jobs(arguments.set) if not wanted or any(part in f"{j[0]} {j[1]}" for part in wanted)], place)


if __name__ == "__main__":
    main()
