#!/usr/bin/env python3
"""Train ResNet-50 on made-up pictures with Horovod and TensorFlow 2, and print how many pictures a second that makes.

One process for each GPU. All processes get the same first weights, and after each batch their gradients are averaged:
the speed of the network counts, and no data set is needed. Process 0 prints the results. Python 3.6 or later.
"""

import argparse
import statistics
import sys
import time

SIZE = 224
CLASSES = 1000
#: Of a normal distribution, 95 % lie within so many standard deviations of the mean.
WIDTH = 1.96


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=32, help="pictures of a batch, for each GPU")
    parser.add_argument("--warmup", type=int, default=10, help="batches before the first measurement")
    parser.add_argument("--iterations", type=int, default=10, help="how often is measured")
    parser.add_argument("--batches", type=int, default=10, help="batches of one measurement")
    parser.add_argument("--size", type=int, default=SIZE, help="width and height of a picture")
    return parser.parse_args()


def trainer(tf, hvd, options):
    """A function that trains one batch."""
    network = tf.keras.applications.ResNet50(weights=None, classes=CLASSES, input_shape=(options.size, options.size, 3))
    optimizer = tf.keras.optimizers.SGD(0.01)
    loss_of = tf.keras.losses.SparseCategoricalCrossentropy()
    pictures = tf.random.uniform((options.batch, options.size, options.size, 3))
    labels = tf.random.uniform((options.batch,), maxval=CLASSES, dtype=tf.int64)

    @tf.function
    def step() -> None:
        with tf.GradientTape() as plain:
            loss = loss_of(labels, network(pictures, training=True))
        tape = hvd.DistributedGradientTape(plain)
        weights = network.trainable_variables
        # Python 3.6 to 3.9 have no strict zip.
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights))  # noqa: B905

    # The optimizer has its variables only after a first batch.
    step()
    hvd.broadcast_variables(network.variables, root_rank=0)
    # A method until TensorFlow 2.10, a list since.
    state = optimizer.variables() if callable(optimizer.variables) else optimizer.variables
    hvd.broadcast_variables(state, root_rank=0)
    return step


def main() -> int:
    """Entry point."""
    options = arguments()
    import horovod.tensorflow as hvd
    import tensorflow as tf

    hvd.init()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        # Some launchers show each process its own GPU only.
        tf.config.set_visible_devices(gpus[hvd.local_rank() % len(gpus)], "GPU")
    device = "GPU" if gpus else "CPU"

    def say(text: str) -> None:
        if hvd.rank() == 0:
            sys.stdout.write(f"{text}\n")
            sys.stdout.flush()

    say(f"Model: ResNet50\nBatch size: {options.batch}\nNumber of {device}s: {hvd.size()}\nRunning warmup...")
    step = trainer(tf, hvd, options)
    for _ in range(options.warmup):
        step()
    say("Running benchmark...")
    speeds = []
    for number in range(options.iterations):
        began = time.perf_counter()
        for _ in range(options.batches):
            step()
        speeds.append(options.batch * options.batches / (time.perf_counter() - began))
        say(f"Iter #{number}: {speeds[-1]:.1f} img/sec per {device}")
    mean, spread = statistics.mean(speeds), WIDTH * statistics.pstdev(speeds)
    ranks = hvd.size()
    say(f"Img/sec per {device}: {mean:.1f} +-{spread:.1f}")
    say(f"Total img/sec on {ranks} {device}(s): {ranks * mean:.1f} +-{ranks * spread:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
