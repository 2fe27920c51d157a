class HealthCheckResponse:
    SERVING: int
    NOT_SERVING: int
