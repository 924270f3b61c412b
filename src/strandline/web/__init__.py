"""The API and the pages of a service: what is seen and what may be asked. They know the desk, the project and its
operations; nothing of schedules and Spark."""
