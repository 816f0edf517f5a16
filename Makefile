# Names for commands. What they do is in tools/ and tests/.

.PHONY: help setup lab lab-node lab-kubernetes lab-down test test-full sanity bench docs

# The site that `gpuops init` makes of the machines of lab.
site := .cache/lab

help: ## list these names
	@sed -n 's/^\([a-z-]*\):.*## /\1	/p' Makefile | expand -t 12

setup: ## install what the checkout needs into .venv
	tools/setup

lab: setup ## boot a whole cluster: Slurm, homes, portal, registry, monitoring and two users (docs/tour.md)
	tools/lab up --machine head1:trixie:no-gpu \
	  --machine gpu1:trixie:a100-sxm4-40gb-x2 --machine gpu2:trixie:t4-x1
	tools/lab disk head1 first second
	tools/lab answers >.cache/lab.json
	test -d $(site) || .venv/bin/gpuops init $(site) --answers .cache/lab.json
	cd $(site) && ../../.venv/bin/gpuops up
	cd $(site) && ../../.venv/bin/gpuops status
	@echo
	@echo 'break a GPU        tools/lab xid gpu1'
	@echo 'and watch it       cd $(site) && ../../.venv/bin/gpuops status'
	@echo 'then mend it       tools/lab ssh head1 -- sudo gpuops-reconciler clear gpu1'
	@echo 'ten minutes more   docs/tour.md'

lab-node: setup ## boot machines of two systems and take them from bare to verified, without a cluster
	tools/lab up
	.venv/bin/gpuops up -i inventories/lab
	.venv/bin/gpuops status -i inventories/lab

lab-kubernetes: setup ## boot three machines and make them a Kubernetes cluster; the first time builds Kubernetes (docs/lab.md)
	.venv/bin/python -m tests.site.kubernetes_lab
	@echo
	@echo 'look at it         tools/lab ssh kcp1 -- sudo kubectl --kubeconfig /etc/kubernetes/admin.conf get nodes'
	@echo 'break a GPU        tools/lab xid kgpu1 --gpu 1 --code 79'

lab-down: setup ## stop the machines of the lab and leave nothing of them behind
	tools/lab down
	rm -rf $(site) .cache/lab.json .cache/lab-kubernetes

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
