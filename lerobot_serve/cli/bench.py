EXAMPLE = ''


def add_arguments(p):
    pass


def main(o):
    return 0
