#!/bin/sh
echo "the bundle's own set-up tool: $*"
