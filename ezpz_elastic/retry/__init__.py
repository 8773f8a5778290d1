"""The outer loop, for launchers that tear a whole job down when one host dies: run, classify, replace, relaunch."""
