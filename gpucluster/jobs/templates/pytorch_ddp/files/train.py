#!/usr/bin/env python3
"""Train ResNet-18 on CIFAR-10 with PyTorch's DistributedDataParallel, and print one JSON object for each epoch.

    train.py --data PATH|--synthetic IMAGES [--epochs 10] [--checkpoint FILE] ...

Each rank finds the others by RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Nothing is fetched: PATH is
cifar-10-python.tar.gz or its folder cifar-10-batches-py, and each of its files must have its published checksum. A
run that ended too early goes on after the last epoch of its checkpoint. Tried with PyTorch 1.13 and later.
"""

import argparse
import hashlib
import io
import json
import math
import os
import pickle
import sys
import tarfile
import time

#: MD5 of each file, as the data set's page and PyTorch's own reader have them.
CHECKSUMS = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
CLASSES = 10
SIZE = 32
PADDING = 4
#: Of the pictures of the data set, for each colour.
MEAN = (0.4914, 0.4822, 0.4465)
DEVIATION = (0.2023, 0.1994, 0.2010)
#: The learning rate is that of so many images in a step, and grows with them (linear scaling); in the first epoch it
#: rises from 0.
IMAGES_OF_RATE = 256
#: As EX_NOINPUT: something that the job needs is missing.
MISSING = 66


class TrainingError(Exception):
    """The training can't begin or go on; the message states why and what to do."""


# --- the data set -----


def read_batches(path):
    """The content of each file of the data set, by name, after its checksum was compared."""
    contents = {}
    try:
        if os.path.isdir(path):
            folder = os.path.join(path, "cifar-10-batches-py")
            folder = folder if os.path.isdir(folder) else path
            for name in CHECKSUMS:
                with open(os.path.join(folder, name), "rb") as file:
                    contents[name] = file.read()
        else:
            with tarfile.open(path) as archive:
                for member in archive:
                    name = member.name.rpartition("/")[2]
                    file = archive.extractfile(member) if name in CHECKSUMS else None
                    if file is not None:
                        contents[name] = file.read()
    except (OSError, EOFError, tarfile.TarError) as error:
        raise TrainingError(f"CIFAR-10 can't be read from {path}: {error}. {HOW}") from None
    for name, checksum in CHECKSUMS.items():
        if name not in contents:
            raise TrainingError(f"{path} has no {name}. {HOW}")
        if hashlib.md5(contents[name]).hexdigest() != checksum:  # noqa: S324 - it was published so
            raise TrainingError(f"{name} in {path} does not have its checksum {checksum}: it is damaged. {HOW}")
    return contents


HOW = "Copy cifar-10-python.tar.gz to the share again"


class _Arrays(pickle.Unpickler):
    """Reads dictionaries with arrays, and nothing that could run."""

    def find_class(self, module, name):
        if (module.rpartition(".")[0] in ("numpy.core", "numpy._core") and name == "_reconstruct") or (
            module == "numpy" and name in ("ndarray", "dtype")
        ):
            import numpy
            from numpy.core.multiarray import _reconstruct

            return _reconstruct if name == "_reconstruct" else getattr(numpy, name)
        raise TrainingError(f"the data set has an object {module}.{name}, which it should not have. {HOW}")


def cifar10(path):
    """Images (uint8, N x 3 x 32 x 32) and labels, to train and to test with."""
    import torch

    parts = {True: ([], []), False: ([], [])}
    for name, content in sorted(read_batches(path).items()):
        batch = _Arrays(io.BytesIO(content), encoding="bytes").load()
        images, labels = parts[name.startswith("data")]
        images.append(torch.from_numpy(batch[b"data"].copy()).view(-1, 3, SIZE, SIZE))
        labels.append(torch.tensor(batch[b"labels"]))
    return [tuple(map(torch.cat, parts[train])) for train in (True, False)]


def synthetic(images, seed):
    """A data set that is easy to learn: each class has a pattern, in noise. For tests."""
    import torch

    made = torch.Generator().manual_seed(seed)
    patterns = torch.randint(64, 192, (CLASSES, 3, SIZE // 8, SIZE // 8), generator=made)
    patterns = patterns.repeat_interleave(8, dim=2).repeat_interleave(8, dim=3)
    sets = []
    for number in (images, max(images // 5, 1)):
        labels = torch.randint(CLASSES, (number,), generator=made)
        noise = torch.randint(-48, 49, (number, 3, SIZE, SIZE), generator=made)
        sets.append(((patterns[labels] + noise).clamp(0, 255).to(torch.uint8), labels))
    return sets


def prepared(images, device):
    """Images as the network gets them."""
    import torch

    mean = torch.tensor(MEAN, device=device).view(1, 3, 1, 1)
    deviation = torch.tensor(DEVIATION, device=device).view(1, 3, 1, 1)
    return (images.float() / 255 - mean) / deviation


def augmented(images, made):
    """Each image moved by up to 4 pixels, half of them mirrored. For training only, never for the test."""
    import torch

    number, device = len(images), images.device
    padded = torch.nn.functional.pad(images, [PADDING] * 4)
    rows, columns = torch.randint(2 * PADDING + 1, (2, number, 1), generator=made) + torch.arange(SIZE)
    mirrored = torch.randint(2, (number,), generator=made).bool()
    columns = torch.where(mirrored.view(-1, 1), columns.flip(1), columns)
    rows, columns = rows.to(device).view(number, 1, SIZE, 1), columns.to(device).view(number, 1, 1, SIZE)
    each, colour = (
        torch.arange(number, device=device).view(-1, 1, 1, 1),
        torch.arange(3, device=device).view(1, -1, 1, 1),
    )
    return padded[each, colour, rows, columns]


# --- the network -----


def resnet18(width, weights):
    """ResNet-18 with the parameter names of torchvision. For images of 32 pixels its first layer does not shrink them;
    with weights that were trained elsewhere (torchvision's file) it is the original one.
    """
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self, before, after, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(after)
            self.conv2 = nn.Conv2d(after, after, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(after)
            self.relu = nn.ReLU(inplace=True)
            self.downsample = None
            if stride != 1 or before != after:
                self.downsample = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

        def forward(self, values):
            beside = values if self.downsample is None else self.downsample(values)
            values = self.relu(self.bn1(self.conv1(values)))
            return self.relu(self.bn2(self.conv2(values)) + beside)

    class ResNet18(nn.Module):
        def __init__(self):
            super().__init__()
            stem = (7, 2, 3) if weights else (3, 1, 1)
            self.conv1 = nn.Conv2d(3, width, *stem, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.relu = nn.ReLU(inplace=True)
            self.maxpool = nn.MaxPool2d(3, 2, 1) if weights else nn.Identity()
            before = width
            for number in range(4):
                after = width << number
                first = Block(before, after, 1 if number == 0 else 2)
                self.add_module(f"layer{number + 1}", nn.Sequential(first, Block(after, after, 1)))
                before = after
            self.fc = nn.Linear(before, CLASSES)

        def forward(self, values):
            values = self.maxpool(self.relu(self.bn1(self.conv1(values))))
            values = self.layer4(self.layer3(self.layer2(self.layer1(values))))
            return self.fc(values.mean(dim=(2, 3)))

    network = ResNet18()
    if weights:
        parameters = torch.load(weights, map_location="cpu", weights_only=True)
        # The last layer is for other classes.
        parameters = {name: value for name, value in parameters.items() if not name.startswith("fc.")}
        try:
            missing, unknown = network.load_state_dict(parameters, strict=False)
        except RuntimeError as error:
            raise TrainingError(f"{weights} does not fit to ResNet-18: {str(error)[:300]}") from None
        if unknown or [name for name in missing if not name.startswith("fc.")]:
            raise TrainingError(f"{weights} does not have the weights of torchvision's resnet18")
    return network


# --- the checkpoint -----


def save(path, content):
    """Write it whole or not at all: a job that is killed meanwhile finds the one before."""
    import torch

    beside = f"{path}.new"
    with open(beside, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def load(path, settings):
    """The checkpoint; None without one.

    Raises:
        TrainingError: it is of a training with other settings, or can't be read.
    """
    import torch

    if not os.path.exists(path):
        return None
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
        if checkpoint["settings"] != settings:
            raise TrainingError(
                f"{path} is of a training with other options: {checkpoint['settings']}. Remove it, or name another"
            )
    except (OSError, EOFError, RuntimeError, KeyError, TypeError, pickle.UnpicklingError) as error:
        raise TrainingError(
            f"the checkpoint {path} can't be read: {error}. Remove it to begin from the start"
        ) from None
    return checkpoint


# --- the training -----


class RankGroup:
    """This rank among the others."""

    def __init__(self, backend):
        import torch
        import torch.distributed as dist

        def number(name):
            try:
                return int(os.environ[name])
            except (KeyError, ValueError):
                raise TrainingError(
                    f"the environment has no number {name}: start this with a launcher of the job"
                ) from None

        self.rank, self.local, self.size = number("RANK"), number("LOCAL_RANK"), number("WORLD_SIZE")
        gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if backend == "nccl":
            if not gpus:
                raise TrainingError(
                    "PyTorch sees no GPU: is this a PyTorch with CUDA or ROCm, and did the job get GPUs?"
                )
            # A rank that was given one GPU alone sees it as the first.
            index = 0 if gpus == 1 else self.local
            if index >= gpus:
                raise TrainingError(f"rank {self.local} of this node has no GPU: there are {gpus}")
            self.device = torch.device("cuda", index)
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
            if "GLOO_SOCKET_IFNAME" not in os.environ and default_interface():
                os.environ["GLOO_SOCKET_IFNAME"] = default_interface()
        try:
            dist.init_process_group(backend, init_method="env://", rank=self.rank, world_size=self.size)
        except RuntimeError as error:
            # Debian 13 has a PyTorch that wants libuv and is built without it. Each rank fails before it talks.
            if "libuv" not in str(error):
                raise
            os.environ["USE_LIBUV"] = "0"
            dist.init_process_group(backend, init_method="env://", rank=self.rank, world_size=self.size)
        self.backend = backend

    def sums(self, *values):
        """The sum of each value over all ranks."""
        import torch
        import torch.distributed as dist

        kind = torch.float64
        together = torch.tensor(values, dtype=kind, device=self.device)
        dist.all_reduce(together)
        return together.tolist()

    def from_first(self, tensor):
        """What rank 0 has, in each rank."""
        import torch.distributed as dist

        dist.broadcast(tensor, 0)
        return tensor

    def say(self, **values):
        """One line of JSON, from one rank."""
        if self.rank == 0:
            sys.stdout.write(json.dumps(values) + "\n")
            sys.stdout.flush()


def default_interface():
    """The network interface of the default route: a host name may stand for 127.0.1.1. Empty without one."""
    try:
        with open("/proc/net/route") as file:
            rows = [line.split() for line in file.read().splitlines()[1:]]
    except OSError:
        return ""
    return next((row[0] for row in rows if len(row) > 1 and row[1] == "00000000"), "")


def rate(options, step, steps, images):
    """The learning rate of a step: it rises during the first epoch, and falls like a cosine to 0."""
    highest = options.learning_rate * images / IMAGES_OF_RATE
    if step < steps:
        return highest * (step + 1) / steps
    share = (step - steps) / max(steps * (options.epochs - 1), 1)
    return highest * 0.5 * (1 + math.cos(math.pi * share))


def train_epoch(ranks, model, optimizer, data, sampler, options, epoch):
    """One epoch. Returns the mean loss over all images of all ranks, and their number."""
    import torch

    images, labels = data
    sampler.set_epoch(epoch)
    indices = torch.tensor(list(sampler)).to(ranks.device)
    made = torch.Generator().manual_seed((options.seed * 1000 + epoch) * ranks.size + ranks.rank)
    loss_of = torch.nn.CrossEntropyLoss()
    model.train()
    steps = math.ceil(len(indices) / options.batch)
    total = torch.zeros((), dtype=torch.float64, device=ranks.device)
    for step in range(steps):
        chosen = indices[step * options.batch : (step + 1) * options.batch]
        for group in optimizer.param_groups:
            group["lr"] = rate(options, epoch * steps + step, steps, options.batch * ranks.size)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(prepared(augmented(images[chosen], made), ranks.device)), labels[chosen])
        loss.backward()
        optimizer.step()
        total += loss.detach().double() * len(chosen)
    sum_of_losses, number = ranks.sums(total.item(), len(indices))
    return sum_of_losses / number, int(number)


def accuracy(ranks, network, data, batch):
    """The share of the test images that is recognized: each rank tests its part, and the counts are added."""
    import torch

    images, labels = data
    # The statistics of the layers are those of rank 0, which the checkpoint has.
    for buffer in network.buffers():
        ranks.from_first(buffer)
    network.eval()
    right, seen = 0, 0
    mine = torch.arange(ranks.rank, len(images), ranks.size, device=ranks.device)
    with torch.no_grad():
        for chosen in mine.split(batch):
            predictions = network(prepared(images[chosen], ranks.device)).argmax(dim=1)
            right += int((predictions == labels[chosen]).sum())
            seen += len(chosen)
    right, seen = ranks.sums(right, seen)
    return right / seen


def resume(ranks, network, optimizer, path, settings):
    """Continue where the checkpoint ends. Returns the number of finished epochs. Only rank 0 reads the file."""
    import torch

    checkpoint, fault = None, ""
    if ranks.rank == 0 and path:
        try:
            checkpoint = load(path, settings)
        except TrainingError as error:
            fault = str(error)
    code = -1 if fault else checkpoint["epoch"] if checkpoint else 0
    (epoch,) = ranks.from_first(torch.tensor([code], device=ranks.device)).tolist()
    if epoch < 0:
        raise TrainingError(fault or "rank 0 could not read the checkpoint")
    if checkpoint:
        network.load_state_dict(checkpoint["network"])
    if epoch:
        for tensor in network.state_dict().values():
            ranks.from_first(tensor)
        for number, parameter in enumerate(network.parameters()):
            buffer = checkpoint["momentum"][number].to(ranks.device) if checkpoint else torch.zeros_like(parameter)
            optimizer.state[parameter]["momentum_buffer"] = ranks.from_first(buffer)
    return epoch


def run(options):
    """Train."""
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DistributedSampler

    torch.manual_seed(options.seed)
    if options.backend == "gloo":
        torch.set_num_threads(max(len(os.sched_getaffinity(0)) // options.ranks_per_node, 1))
    data = synthetic(options.synthetic, options.seed) if options.synthetic else cifar10(options.data)
    network = resnet18(options.width, options.weights)
    ranks = RankGroup(options.backend)
    network = network.to(ranks.device)
    # All images are 184 MB: a GPU has them at hand.
    data = [tuple(part.to(ranks.device) for part in each) for each in data]
    optimizer = torch.optim.SGD(network.parameters(), lr=options.learning_rate, momentum=0.9, weight_decay=5e-4)
    data_set = f"synthetic {options.synthetic}" if options.synthetic else "CIFAR-10"
    settings = (
        f"{data_set}, width {options.width}, {options.epochs} epochs, seed {options.seed}, "
        f"learning rate {options.learning_rate}, weights {os.path.basename(options.weights) or 'none'}"
    )
    first_epoch = resume(ranks, network, optimizer, options.checkpoint, settings)
    model = DistributedDataParallel(
        network, device_ids=[ranks.device.index] if ranks.device.index is not None else None
    )
    sampler = DistributedSampler(range(len(data[0][0])), ranks.size, ranks.rank, shuffle=True, seed=options.seed)
    ranks.say(
        ranks=ranks.size,
        backend=ranks.backend,
        torch=torch.__version__,
        data=data_set,
        images=len(data[0][0]),
        finished_epochs=first_epoch,
        epochs=options.epochs,
    )
    for epoch in range(first_epoch, options.epochs):
        began = time.monotonic()
        loss, images = train_epoch(ranks, model, optimizer, data[0], sampler, options, epoch)
        took = time.monotonic() - began
        if not math.isfinite(loss):
            raise TrainingError(f"the loss of epoch {epoch + 1} is {loss}: try a smaller learning rate")
        reached = accuracy(ranks, network, data[1], options.batch)
        if ranks.rank == 0 and options.checkpoint:
            momentum = [optimizer.state[parameter]["momentum_buffer"] for parameter in network.parameters()]
            # Tensors, whole numbers and text only: PyTorch 1.13 reads no float where nothing may run.
            content = {"epoch": epoch + 1, "network": network.state_dict(), "momentum": momentum, "settings": settings}
            save(options.checkpoint, content)
        ranks.say(
            epoch=epoch + 1,
            loss=round(loss, 6),
            accuracy=round(reached, 6),
            seconds=round(took, 3),
            images_per_second=round(images / took, 1),
            ranks=ranks.size,
        )
    # No rank leaves while another still waits for it.
    torch.distributed.barrier()


def main():
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--data", default="", help="cifar-10-python.tar.gz, or its folder")
    add("--synthetic", type=int, default=0, metavar="IMAGES", help="a made-up data set with so many images")
    add("--epochs", type=int, default=10)
    add("--batch", type=int, default=128, help="images of a step, in each rank")
    add("--learning-rate", type=float, default=0.1, help=f"for {IMAGES_OF_RATE} images in a step")
    add("--seed", type=int, default=0)
    add("--width", type=int, default=64, help="channels of the first layer; 64 is ResNet-18")
    add("--weights", default="", help="torchvision's file of weights for resnet18")
    add("--checkpoint", default="", help="the file to continue from, and to write after each epoch")
    add("--backend", choices=("nccl", "gloo"), required=True)
    add("--ranks-per-node", type=int, default=1)
    options = parser.parse_args()
    if bool(options.data) == bool(options.synthetic):
        parser.error("one of --data and --synthetic is needed")
    status = 0
    try:
        run(options)
    except TrainingError as error:
        sys.stderr.write(f"train.py: {error}\n")
        status = MISSING
    sys.stdout.flush()
    sys.stderr.flush()
    # At once: PyTorch 1.13 waits for its threads with Python's lock held, while one of them waits for that lock.
    os._exit(status)


if __name__ == "__main__":
    main()
