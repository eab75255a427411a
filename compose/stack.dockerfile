# One image with our programs. The context is laid by the runner: bin/ holds the programs, root/ what they need to run
# (nothing for static ones, their shared libraries otherwise), data/ is where they may write.
FROM scratch
COPY root/ /
COPY bin/ /bin/
COPY data/ /data/
