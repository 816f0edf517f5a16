# Names for commands. What they do is in tools/ and tests/.

.PHONY: help setup lab lab-slurm lab-down test test-full sanity bench docs

# The lab of lab-slurm is beside that of lab.
slurm := GPUOPS_LAB_SUFFIX=slurm

help: ## list these names
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

setup: ## install what the checkout needs into .venv
	tools/setup

lab: setup ## boot the lab's machines and take them from bare to verified
	tools/lab up
	.venv/bin/gpuops up -i inventories/lab
	.venv/bin/gpuops status -i inventories/lab

lab-slurm: setup ## boot a cluster of Slurm, a head and two nodes with GPUs, and run a job there
	$(slurm) tools/lab up --machine head1:trixie:no-gpu \
	  --machine node1:trixie:a100-sxm4-40gb-x2 --machine node2:trixie:a100-sxm4-40gb-x2
	$(slurm) .venv/bin/gpuops up -i inventories/lab-slurm
	$(slurm) tools/lab ssh head1 -- srun --gres=gpu:1 nvidia-smi -L

lab-down: setup ## stop the machines of both labs and leave nothing of them behind
	tools/lab down
	$(slurm) tools/lab down

test: setup ## everything but the slow tests
	tests/run

test-full: setup ## everything
	tests/run --full

sanity: setup ## ansible-test sanity and galaxy-importer
	.venv/bin/python -m pytest -m "" tests/sanity

bench: setup ## measure what has a goal, and print it beside the goal
	.venv/bin/python -m tests.bench

docs: setup ## build the documentation into site/
	tools/docs
