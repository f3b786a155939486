"""The control plane: the driver's requests to a Kafka cluster, and its transactions."""
