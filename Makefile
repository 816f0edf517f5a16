# Names for commands. What they do is in tools/ and tests/.

.PHONY: help setup lab lab-down test test-full sanity bench docs

help: ## list these names
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

setup: ## install what the checkout needs into .venv
	tools/setup

lab: setup ## boot the lab's machines and take them from bare to verified
	tools/lab up
	.venv/bin/gpuops up -i inventories/lab
	.venv/bin/gpuops status -i inventories/lab

lab-down: setup ## stop the lab's machines and leave nothing of them behind
	tools/lab down

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
