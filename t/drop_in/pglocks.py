# Takes a lock with django-pglocks, says so, and has it until it reads a line:
# pglocks.py HOST PORT KEY wait|try [shared]; the key is text, N or N,N

import sys

import django
from django.conf import settings

host, port, key, how, *shared = sys.argv[1:]
settings.configure(DATABASES={'default': {
    'ENGINE': 'django.db.backends.postgresql', 'NAME': 'shop', 'USER': 'app', 'HOST': host, 'PORT': port}})
django.setup()

from django_pglocks import advisory_lock

numbers = key.split(',')
if numbers[0].lstrip('-').isdigit():
    key = tuple(map(int, numbers)) if len(numbers) == 2 else int(key)
with advisory_lock(key, wait=how == 'wait', shared=bool(shared)) as acquired:
    print('locked' if acquired else 'refused', flush=True)
    if acquired:
        sys.stdin.readline()
print('done', flush=True)
