# SPDX-License-Identifier: Apache-2.0
"""
The door for programs that speak HTTP and JSON.

    fields.py   values of a JSON body, checked: what was given, what is allowed
    images.py   pictures in base64: JPEG, PNG, raw; or nested lists
    body.py     the body of POST /act -> a request and its routing
    replies.py  predictions, errors and headers
    openapi.py  the description of all of it, and a page of it for people
    door.py     the aiohttp application, and which session a request belongs to
"""
