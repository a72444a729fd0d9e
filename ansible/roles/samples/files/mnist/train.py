#!/usr/bin/env python3
"""Train a small network on MNIST's digits, with all GPUs of all workers at once.

TF_CONFIG, which start.sh sets, lists the workers. Every worker has its own share of the pictures; after each
step their gradients are summed, so all of them report the same loss.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys

BATCH_PER_GPU = 64


def task() -> tuple[int, int]:
    """The number of this worker, and how many there are."""
    config = json.loads(os.environ["TF_CONFIG"])
    return config["task"]["index"], len(config["cluster"]["worker"])


def pictures(tf, file: str, worker: int):  # type: ignore[no-untyped-def]
    """The training set: from a file, or else from the internet."""
    if file:
        import numpy

        with numpy.load(file) as data:
            images, labels = data["x_train"], data["y_train"]
    else:
        # All workers share the home: they must not write to the same file.
        (images, labels), _ = tf.keras.datasets.mnist.load_data(path=f"mnist-{worker}.npz")
    return (images / 255.0).astype("float32"), labels.astype("int64")


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", default="", help="mnist.npz, for nodes without the internet")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=70, help="steps of an epoch")
    options = parser.parse_args()
    worker, workers = task()

    # TensorFlow 2.16 and later include Keras 3, whose fit() fails with this strategy; Keras 2 is a separate package.
    if importlib.util.find_spec("tf_keras"):
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    import tensorflow as tf

    if getattr(tf.keras, "__version__", "2").startswith("3"):
        sys.stderr.write("this image has Keras 3 alone, which can't train on several workers: add tf-keras\n")
        return 1
    # Before any other call of TensorFlow: it connects to the other workers.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    batch = BATCH_PER_GPU * strategy.num_replicas_in_sync

    images, labels = pictures(tf, options.data, worker)
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # The same seed, so that all workers split the same order of data.
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=1).repeat().batch(batch)

    with strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.layers.Reshape((28, 28, 1), input_shape=(28, 28)),
                tf.keras.layers.Conv2D(32, 3, activation="relu"),
                tf.keras.layers.MaxPooling2D(),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(128, activation="relu"),
                tf.keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=tf.keras.optimizers.SGD(learning_rate=0.01),
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    history = model.fit(dataset.with_options(sharding), epochs=options.epochs, steps_per_epoch=options.steps, verbose=2)
    losses = history.history["loss"]
    what = f"worker {worker} of {workers}, {strategy.num_replicas_in_sync} replicas"
    sys.stdout.write(f"{what}: loss {losses[0]:.4f} -> {losses[-1]:.4f}\n")
    return 0 if len(losses) == 1 or losses[-1] < losses[0] else 1


if __name__ == "__main__":
    sys.exit(main())
