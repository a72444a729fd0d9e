#!/usr/bin/env python3
"""Train a small network on MNIST's digits, with all GPUs of all workers at once.

Every worker has its own share of the pictures; after each step their gradients are summed, so all of them report the
same loss. WORKERS lists them, in the order of their numbers: HOST:PORT,HOST:PORT. Each prints a line of JSON for each
epoch.
"""

import argparse
import importlib.util
import json
import os
import sys
import time

BATCH_PER_GPU = 64


def place(environment):
    """The number of this worker, and the addresses of all."""
    workers = environment["WORKERS"].split(",")
    number = int(environment["RANK"])
    if len(workers) != int(environment["WORLD_SIZE"]):
        sys.exit(f"{environment['WORLD_SIZE']} workers were started, and {len(workers)} have an address: {workers}")
    return number, workers


def tf_config(number, workers):
    """What TensorFlow reads in TF_CONFIG."""
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": number}})


def pictures(file):
    """The training set: pictures and their digits, from mnist.npz or its folder."""
    import numpy

    with numpy.load(os.path.join(file, "mnist.npz") if os.path.isdir(file) else file) as data:
        return (data["x_train"] / 255.0).astype("float32"), data["y_train"].astype("int64")


def model(tf, learning_rate):
    """The network of TensorFlow's tutorial, ready to be trained."""
    network = tf.keras.Sequential(
        [
            tf.keras.layers.Reshape((28, 28, 1), input_shape=(28, 28)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(128, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    network.compile(
        optimizer=tf.keras.optimizers.SGD(learning_rate=learning_rate),
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return network


def main():
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True, help="mnist.npz, or its folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--steps", type=int, default=70, help="steps of an epoch")
    parser.add_argument("--learning-rate", type=float, default=0.001)
    options = parser.parse_args()
    number, workers = place(os.environ)
    os.environ["TF_CONFIG"] = tf_config(number, workers)

    # TensorFlow 2.16 and later include Keras 3, whose fit() fails with this strategy; Keras 2 is a separate package.
    if importlib.util.find_spec("tf_keras"):
        os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")
    import tensorflow as tf

    if getattr(tf.keras, "__version__", "2").startswith("3"):
        sys.stderr.write("this image has Keras 3 alone, which can't train on several workers: add tf-keras\n")
        return 1
    # Before any other call of TensorFlow: it connects to the other workers.
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    replicas = strategy.num_replicas_in_sync
    images, labels = pictures(options.data)
    sharding = tf.data.Options()
    sharding.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    # The same seed, so that all workers split the same order of data.
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(len(images), seed=1).repeat()
    batches = dataset.batch(BATCH_PER_GPU * replicas).with_options(sharding)
    with strategy.scope():
        network = model(tf, options.learning_rate)

    class EpochReport(tf.keras.callbacks.Callback):
        """Prints what an epoch has reached."""

        def on_epoch_begin(self, epoch, logs=None):
            """Remember when it began."""
            self.began = time.perf_counter()

        def on_epoch_end(self, epoch, logs=None):
            """One line of JSON."""
            line = {
                "worker": number, "workers": len(workers), "replicas": replicas, "epoch": epoch + 1,
                "loss": float(logs["loss"]), "accuracy": float(logs["accuracy"]),
                "seconds": round(time.perf_counter() - self.began, 3),
            }  # fmt: skip
            sys.stdout.write(json.dumps(line) + "\n")
            sys.stdout.flush()

    network.fit(batches, epochs=options.epochs, steps_per_epoch=options.steps, verbose=0, callbacks=[EpochReport()])
    return 0


if __name__ == "__main__":
    sys.exit(main())
