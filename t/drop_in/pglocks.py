# Takes a lock with django-pglocks, has it until it reads a line, and stays connected until
# it reads another: pglocks.py KEY wait|try

import os
import sys

import django
from django.conf import settings

settings.configure(DATABASES={'default': {
    'ENGINE': 'django.db.backends.postgresql', 'NAME': os.environ['PGDATABASE'], 'USER': os.environ['PGUSER'],
    'HOST': os.environ['PGHOST'], 'PORT': os.environ['PGPORT']}})
django.setup()

from django_pglocks import advisory_lock

key, how = sys.argv[1:]
with advisory_lock(key, wait=how == 'wait') as acquired:
    print('locked' if acquired else 'refused', flush=True)
    if acquired:
        sys.stdin.readline()
if acquired:
    print('released', flush=True)
    sys.stdin.readline()
