"""Kubernetes on loopback: a real API server with its etcd, and a kubelet whose containers are processes."""
