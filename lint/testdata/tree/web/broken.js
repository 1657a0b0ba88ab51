publish(
